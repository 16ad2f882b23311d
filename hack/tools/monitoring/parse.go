package main

import "github.com/prometheus/prometheus/promql/parser"

// parsedQuery is what a query selects.
type parsedQuery struct {
	// Error is what is wrong with it, "" for nothing.
	Error string `json:"error,omitempty"`
	// Selectors are the metrics it selects, with the labels that it tells them apart by.
	Selectors []selector `json:"selectors"`
	// Grouped are the labels that it groups and joins by.
	Grouped []string `json:"grouped"`
}

type selector struct {
	Metric string   `json:"metric"`
	Labels []string `json:"labels"`
}

func parse(query string) parsedQuery {
	expr, err := parser.ParseExpr(query)
	if err != nil {
		return parsedQuery{Error: err.Error()}
	}
	var p parsedQuery
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			s := selector{Metric: n.Name}
			for _, m := range n.LabelMatchers {
				if m.Name != "__name__" {
					s.Labels = append(s.Labels, m.Name)
				}
			}
			p.Selectors = append(p.Selectors, s)
		case *parser.AggregateExpr:
			p.Grouped = append(p.Grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				p.Grouped = append(p.Grouped, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	return p
}

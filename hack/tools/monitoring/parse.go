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
	// Made are the labels that it adds by label_replace and label_join.
	Made []string `json:"made"`
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
		case *parser.Call:
			switch n.Func.Name {
			case "label_replace":
				p.Made = append(p.Made, text(n.Args[1]))
			case "label_join":
				p.Made = append(p.Made, text(n.Args[1]))
				for _, label := range n.Args[3:] {
					p.Grouped = append(p.Grouped, text(label))
				}
			}
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

// text is the value of a string in a query, "" of another expression.
func text(e parser.Expr) string {
	if literal, ok := e.(*parser.StringLiteral); ok {
		return literal.Val
	}
	return ""
}

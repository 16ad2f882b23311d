package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// steps says where the time of the Pods goes: for each write, in their order, how long after the
// write before it the API server received it.
func (s spent) steps() string {
	byPod := map[string][]suite.Request{}
	for _, r := range s.requests {
		if changesPod(r) {
			byPod[r.Name] = append(byPod[r.Name], r)
		}
	}
	type step struct {
		who   string
		total time.Duration
		pods  int
	}
	var steps []step // by the place in the order
	for _, writes := range byPod {
		slices.SortStableFunc(writes, func(x, y suite.Request) int { return x.Received.Compare(y.Received) })
		for i, r := range writes {
			if i == len(steps) {
				steps = append(steps, step{who: writer(r)})
			}
			if i > 0 {
				steps[i].total += r.Received.Sub(writes[i-1].Received)
			}
			steps[i].pods++
		}
	}
	var text strings.Builder
	for i, one := range steps {
		if 2*one.pods > len(byPod) { // what happens to a few is not the rule
			fmt.Fprintf(&text, "%d %s +%.2f  ", i+1, one.who, one.total.Seconds()/float64(one.pods))
		}
	}
	return text.String()
}

func writer(r suite.Request) string {
	if r.UserAgent == fakekubelet.UserAgent {
		return "kubelet"
	}
	return strings.TrimSuffix(cmp.Or(r.Component(), r.UserAgent), "-controller")
}

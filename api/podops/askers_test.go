package podops_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/api/podops"
)

const mark, askers = "collaset.kusionstack.io/to-replace", "collaset.kusionstack.io/to-replace-askers"

// marked is a Pod with a mark and a record; "" is none.
func marked(value, record string) podops.View {
	v := podops.View{Labels: map[string]string{}, Annotations: map[string]string{}}
	if value != "" {
		v.Labels[mark] = value
	}
	if record != "" {
		v.Annotations[askers] = record
	}
	return v
}

func TestMark(t *testing.T) {
	for name, test := range map[string]struct{ value, record, wantValue, wantRecord string }{
		"the first":                     {"", "", "now", "job/a"},
		"beside a user":                 {"true", "", "true", "job/a,other"},
		"beside a job":                  {"1", "job/b", "1", "job/a,job/b"},
		"beside a job and a user":       {"1", "job/b,other", "1", "job/a,job/b,other"},
		"again":                         {"1", "job/a", "1", "job/a"},
		"a record without its mark":     {"", "job/b,other", "now", "job/a"},
		"a record that a person edited": {"1", ",job/b,,job/b", "1", "job/a,job/b"},
		"a record that says nothing":    {"1", ",", "1", "job/a,other"},
	} {
		t.Run(name, func(t *testing.T) {
			v := marked(test.value, test.record)
			c, err := podops.Mark(v, mark, "now", "job/a")
			require.NoError(t, err)
			require.Equal(t, marked(test.wantValue, test.wantRecord), c.Apply(v))
		})
	}
	for _, name := range []string{"", "a,b", ","} {
		_, err := podops.Mark(marked("", ""), mark, "now", name)
		require.ErrorContains(t, err, "give it a name without a comma", name)
	}
}

func TestWithdraw(t *testing.T) {
	for name, test := range map[string]struct{ value, record, wantValue, wantRecord string }{
		"the last":                              {"1", "job/a", "", ""},
		"a user remains":                        {"1", "job/a,other", "1", ""},
		"a job remains":                         {"1", "job/a,job/b", "1", "job/b"},
		"one who does not ask":                  {"1", "job/b", "1", "job/b"},
		"a mark without a record is a user's":   {"true", "", "true", ""},
		"what a mark that is gone has left":     {"", "job/a,job/b", "", ""},
		"nothing is there":                      {"", "", "", ""},
		"a record that says nothing is no name": {"1", ",", "1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := marked(test.value, test.record)
			require.Equal(t, marked(test.wantValue, test.wantRecord), podops.Withdraw(v, mark, "job/a").Apply(v))
		})
	}
	v := marked("true", "")
	require.Equal(t, marked("", ""), podops.Withdraw(v, mark, podops.AskerOther).Apply(v))
}

func TestForgetAsker(t *testing.T) {
	for name, test := range map[string]struct {
		value, record         string
		isRecorded            bool
		wantValue, wantRecord string
	}{
		"the last":                          {"1", "job/a", true, "", ""},
		"a user remains":                    {"1", "job/a,other", true, "1", ""},
		"the mark is gone":                  {"", "job/a", true, "", ""},
		"the mark is gone for others, too":  {"", "job/b,job/a", true, "", "job/b"},
		"the mark of others is gone":        {"", "job/b,other", false, "", "job/b,other"},
		"a record that a person edited":     {"", ",job/b,,job/a", true, "", "job/b"},
		"no record":                         {"1", "", false, "1", ""},
		"nothing is there":                  {"", "", false, "", ""},
		"a name that begins as the other's": {"", "job/ab", false, "", "job/ab"},
	} {
		t.Run(name, func(t *testing.T) {
			v := marked(test.value, test.record)
			require.Equal(t, test.isRecorded, podops.Recorded(v, mark, "job/a"))
			require.Equal(t, marked(test.wantValue, test.wantRecord), podops.ForgetAsker(v, mark, "job/a").Apply(v))
		})
	}
}

// TestMarksGoWithTheirLastAsker lets users and programs do anything in any order, and keeps the books beside it.
func TestMarksGoWithTheirLastAsker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, asking := marked("", ""), map[string]bool{}
		var left map[string]bool // what a record without its mark says
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			who := rapid.SampledFrom([]string{"job/a", "job/b", "eviction"}).Draw(t, "who")
			switch rapid.SampledFrom([]string{"ask", "withdraw", "label", "unlabel", "unmark"}).Draw(t, "does") {
			case "ask":
				c, err := podops.Mark(v, mark, "1", who)
				require.NoError(t, err)
				v, asking[who], left = c.Apply(v), true, nil
			case "withdraw":
				v = podops.Withdraw(v, mark, who).Apply(v)
				delete(asking, who)
				left = nil
			case "label": // what a user does with kubectl, who does not know of the record
				if len(asking) == 0 {
					asking, left = left, nil
				}
				if len(asking) == 0 {
					asking = map[string]bool{podops.AskerOther: true}
				}
				one := "true"
				v = podops.Change{Labels: map[string]*string{mark: &one}}.Apply(v)
			case "unlabel":
				if len(asking) > 0 {
					left = asking
				}
				v, asking = podops.Change{Labels: map[string]*string{mark: nil}}.Apply(v), map[string]bool{}
			case "unmark":
				v, asking, left = podops.Unmark(v, mark).Apply(v), map[string]bool{}, nil
				require.Equal(t, marked("", ""), v)
			}
			names := make([]string, 0, len(asking))
			for name := range asking {
				names = append(names, name)
			}
			slices.Sort(names)
			require.Equal(t, strings.Join(names, " "), strings.Join(podops.Askers(v, mark), " "))
		}
	})
}

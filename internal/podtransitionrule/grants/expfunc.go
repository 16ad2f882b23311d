package grants

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// expFunc is f(x) = coeff * x^pow.
type expFunc struct{ coeff, pow float64 }

// newExpFunc reads the numbers; nil if the policy demands nothing.
func newExpFunc(field string, spec *appsv1alpha1.AvailableAdaptivePolicy) (*expFunc, error) {
	if spec == nil || spec.ExpFunc == nil {
		return nil, nil
	}
	f := &expFunc{}
	var okCoeff, okPow bool
	const remedy = "%s.expFunc.%s is %q: give a decimal number from 0, such as \"0.5\""
	if f.coeff, okCoeff = decimal(spec.ExpFunc.Coeff); !okCoeff {
		return nil, fmt.Errorf(remedy, field, "coeff", spec.ExpFunc.Coeff)
	}
	if f.pow, okPow = decimal(spec.ExpFunc.Pow); !okPow {
		return nil, fmt.Errorf(remedy, field, "pow", spec.ExpFunc.Pow)
	}
	return f, nil
}

// decimal reads digits with at most one point; nothing means 1.
func decimal(text string) (float64, bool) {
	if text == "" {
		return 1, true
	}
	if strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}

// nearly is the error, relative to the result, that is taken to come from calculating in binary: 0.1 * 10 is 1.
const nearly = 1e-9

// of is the function's value as a number of Pods of n, between 0 and n, rounded up or down.
func (f *expFunc) of(n int, up bool) int {
	x := float64(n)
	if n <= 0 || f.coeff == 0 { // 0 * Inf is no number
		return 0
	}
	y := f.coeff * math.Pow(x, f.pow)
	if y >= x {
		return n
	}
	if whole := math.Round(y); math.Abs(y-whole) <= nearly*math.Max(1, whole) {
		return int(whole)
	}
	if up {
		return int(math.Ceil(y))
	}
	return int(math.Floor(y))
}

package explorer_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/explorer"
)

// counter is a model of a number that actors raise to 3.
func counter(steps func(int) []explorer.Step[int]) explorer.Model[int] {
	return explorer.Model[int]{
		Steps: steps,
		Key:   strconv.Itoa,
		Check: func(n int) error {
			if n > 3 {
				return errors.New("too many")
			}
			return nil
		},
		Goal: func(n int) bool { return n == 3 },
	}
}

func TestSearchVisitsEverything(t *testing.T) {
	r, err := explorer.Search(counter(func(n int) []explorer.Step[int] {
		if n == 3 {
			return nil
		}
		return []explorer.Step[int]{{Name: "up", To: n + 1}, {Name: "reset", To: 0}}
	}))
	require.NoError(t, err)
	assert.Equal(t, explorer.Result{States: 4, Steps: 6, Depth: 3, Goals: 1}, r)
}

func TestSearchFindsTheShortestWayToABadState(t *testing.T) {
	_, err := explorer.Search(counter(func(n int) []explorer.Step[int] {
		return []explorer.Step[int]{{Name: "up", To: n + 1}, {Name: "jump", To: n + 2}}
	}))
	var v *explorer.Violation
	require.ErrorAs(t, err, &v)
	assert.Len(t, v.Trace, 2)
	assert.ErrorContains(t, err, "too many")
}

func TestSearchFindsABadStep(t *testing.T) {
	_, err := explorer.Search(counter(func(n int) []explorer.Step[int] {
		return []explorer.Step[int]{{Name: "bad", To: n, Err: errors.New("not like this")}}
	}))
	assert.ErrorContains(t, err, "not like this")
}

func TestSearchFindsATrap(t *testing.T) {
	_, err := explorer.Search(counter(func(n int) []explorer.Step[int] {
		switch n {
		case 3:
			return nil
		case -1, -2: // runs in circles for ever
			return []explorer.Step[int]{{Name: "circle", To: -3 - n}}
		default:
			return []explorer.Step[int]{{Name: "up", To: n + 1}, {Name: "trap", To: -1}}
		}
	}))
	var v *explorer.Violation
	require.ErrorAs(t, err, &v)
	assert.True(t, v.Stuck)
	assert.Equal(t, []string{"trap"}, v.Trace)
}

func TestUnfairStepsDoNotCountAsAWayOut(t *testing.T) {
	m := counter(func(n int) []explorer.Step[int] {
		if n == 3 {
			return nil
		}
		return []explorer.Step[int]{{Name: "luck", To: 3}}
	})
	m.Fair = func(step string) bool { return step != "luck" }
	_, err := explorer.Search(m)
	var v *explorer.Violation
	require.ErrorAs(t, err, &v)
	assert.True(t, v.Stuck)
}

func TestBoundIsAnError(t *testing.T) {
	m := counter(func(n int) []explorer.Step[int] { return []explorer.Step[int]{{Name: "down", To: n - 1}} })
	m.MaxStates = 10
	_, err := explorer.Search(m)
	assert.ErrorContains(t, err, "within 10 states")
}

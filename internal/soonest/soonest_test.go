package soonest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"kusionstack.io/kuperator/internal/soonest"
)

func TestOf(t *testing.T) {
	assert.Zero(t, soonest.Of())
	assert.Zero(t, soonest.Of(0, -time.Second, 0), "none of them is a wait")
	assert.Equal(t, time.Second, soonest.Of(0, time.Minute, -time.Hour, time.Second, time.Hour))
}

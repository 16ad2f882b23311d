package certs

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"
	"pgregory.net/rapid"
)

var (
	unknown  = time.Time{}
	start    = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	plan     = schedule{lifetime: 90 * time.Hour, settle: time.Minute}
	someName = []string{"webhook-server.kuperator-system.svc", "127.0.0.1"}
)

func mustRenew(t require.TestingT, m material, names []string, now, published time.Time) (material, time.Time) {
	next, look, err := renew(m, names, now, plan, published)
	require.NoError(t, err)
	return next, look
}

func parsed(t require.TestingT, p pair) *x509.Certificate {
	c, err := p.parse()
	require.NoError(t, err)
	return c
}

func authorities(t require.TestingT, m material) int {
	all, err := cert.ParseCertsPEM(m.bundle)
	require.NoError(t, err)
	return len(all)
}

func TestRenew(t *testing.T) {
	first, look := mustRenew(t, material{}, someName, start, unknown)
	require.Equal(t, start.Add(60*time.Hour), look, "the first look is at two thirds of the life")
	require.True(t, covers(parsed(t, first.serving), someName))
	require.Nil(t, first.next.cert)
	require.Equal(t, 1, authorities(t, first))

	due := start.Add(60 * time.Hour)
	rotating, look := mustRenew(t, first, someName, due, start)
	require.Equal(t, due.Add(plan.settle), look)
	require.Equal(t, first.serving, rotating.serving, "the old certificate is served until the new authority is known")
	require.NotNil(t, rotating.next.cert)
	require.Equal(t, 2, authorities(t, rotating))

	tests := map[string]struct {
		from      material
		names     []string
		at        time.Time
		published time.Time
		want      func(t *testing.T, m material)
	}{
		"before two thirds of the life nothing changes": {first, someName, due.Add(-time.Second), start,
			func(t *testing.T, m material) {
				assert.True(t, m.equal(first))
			}},
		"before the settle time is over the old certificate is served": {rotating, someName,
			due.Add(plan.settle - time.Second), due, func(t *testing.T, m material) {
				assert.True(t, m.equal(rotating))
			}},
		"while a configuration lacks the bundle the old certificate is served": {rotating, someName, due.Add(time.Hour),
			unknown, func(t *testing.T, m material) {
				assert.True(t, m.equal(rotating))
			}},
		"the settle time begins when the last configuration has the bundle": {rotating, someName, due.Add(time.Hour),
			due.Add(time.Hour - plan.settle + time.Second), func(t *testing.T, m material) {
				assert.True(t, m.equal(rotating))
			}},
		"after the settle time the new certificate is served and both authorities are trusted": {rotating, someName,
			due.Add(plan.settle), due, func(t *testing.T, m material) {
				assert.Equal(t, rotating.next, m.serving)
				assert.Nil(t, m.next.cert)
				assert.Equal(t, 2, authorities(t, m))
			}},
		"once the old certificate expired the next one is served whether or not it is known": {rotating, someName,
			start.Add(plan.lifetime), unknown, func(t *testing.T, m material) {
				assert.Equal(t, rotating.next, m.serving)
				assert.Equal(t, 1, authorities(t, m), "the expired authority is gone")
			}},
		"when everything expired a new generation is served at once": {rotating, someName, start.Add(1000 * time.Hour),
			unknown, func(t *testing.T, m material) {
				assert.NotEqual(t, first.serving, m.serving)
				assert.Equal(t, 1, authorities(t, m))
				assert.True(t, trusts(m.bundle, parsed(t, m.serving), start.Add(1000*time.Hour)))
			}},
		"a broken bundle is replaced": {material{serving: first.serving, bundle: []byte("nonsense")}, someName, start, start,
			func(t *testing.T, m material) {
				assert.NotEqual(t, first.serving, m.serving)
				assert.Equal(t, 1, authorities(t, m))
			}},
		"a key of another certificate is replaced": {material{serving: pair{first.serving.cert, rotating.next.key},
			bundle: first.bundle}, someName, start, start, func(t *testing.T, m material) {
			parsed(t, m.serving)
		}},
		"a further name brings a rotation, and the names so far stay": {first, []string{"example.test"}, start.Add(time.Hour),
			start, func(t *testing.T, m material) {
				assert.Equal(t, first.serving, m.serving)
				assert.True(t, covers(parsed(t, m.next), append([]string{"example.test"}, someName...)))
			}},
		"a next certificate that lacks a name is made anew": {rotating, append([]string{"example.test"}, someName...),
			due.Add(plan.settle), due, func(t *testing.T, m material) {
				assert.Equal(t, first.serving, m.serving)
				assert.True(t, covers(parsed(t, m.next), []string{"example.test"}))
			}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, _ := mustRenew(t, tc.from, tc.names, tc.at, tc.published)
			tc.want(t, got)
		})
	}
}

// Whatever the pace of looks and of configurations being written, what is served is valid, trusted, and new authorities
// have been known for the settle time.
func TestRenewKeepsItsInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, published := start, time.Time{}
		since := func(m material, bundle string) time.Time {
			if bundle != string(m.bundle) {
				return unknown
			}
			return published
		}
		m, look := mustRenew(t, material{}, someName, now, unknown)
		bundle := ""
		for range rapid.IntRange(1, 25).Draw(t, "looks") {
			if string(m.bundle) != bundle && rapid.Bool().Draw(t, "published") {
				bundle, published = string(m.bundle), now
			}
			if rapid.Bool().Draw(t, "in time") {
				now = look
			} else {
				now = now.Add(time.Duration(rapid.IntRange(1, 20*3600).Draw(t, "seconds")) * time.Second)
			}
			before := m
			m, look = mustRenew(t, before, someName, now, since(before, bundle))
			again, _ := mustRenew(t, m, someName, now, since(m, bundle))
			require.True(t, again.equal(m), "a second look changes nothing")

			serving := parsed(t, m.serving)
			require.True(t, now.Before(serving.NotAfter))
			require.True(t, trusts(m.bundle, serving, now))
			require.LessOrEqual(t, authorities(t, m), 3)
			old := parsed(t, before.serving)
			if string(before.serving.cert) != string(m.serving.cert) && now.Before(old.NotAfter) {
				require.False(t, now.Before(published.Add(plan.settle)), "served before it settled")
				require.True(t, trusts([]byte(bundle), serving, now),
					"served before the configurations knew its authority at %s", published)
			}
		}
	})
}

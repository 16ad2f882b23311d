// Package dashboard serves the live page: a Fleet as a picture in a browser, for those who would rather look than read.
//
// It reads, and answers GET alone, with the rights of the user who started it. It is made for one person at one machine
// and listens on a loopback address; a request that names another host is refused, so that no page from elsewhere reads
// it through a name that it makes point here. Everything that the page needs comes from this program.
//
// If its user wants that (Allow), the page acts too: by an order from this page alone, with a token that is shown on
// the user's terminal. What an action does is not decided here, see Actor.
//
// The browser gets a picture once and then what changed, by keys: one for each Pod, workload, budget and job, and one
// for the rest (see Parts). A change of one Pod among 10,000 is one line.
package dashboard

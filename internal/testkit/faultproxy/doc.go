// Package faultproxy stands between one program and the API server, sees every request and every watch event, and makes
// the faults that a network, an API server and a machine make: a process killed before or after one certain write, a
// reply lost, an error instead of an answer, a watch that lags, breaks or leaves out what was superseded, a list from
// the past.
//
// A client sees nothing that an API server could not show it. Within one watch the order is kept, so events of one
// object never change places, and a client that sees a resourceVersion has seen what came before it. A list from the
// past is what a lagging replica answers to a client that does not ask for the newest (resourceVersion "0"), never to
// one that does.
//
// The proxy speaks plain HTTP/1.1 to the client, on 127.0.0.1, without a token: it adds the identity of the upstream
// configuration. Watches are in JSON, whatever the client asks for.
package faultproxy

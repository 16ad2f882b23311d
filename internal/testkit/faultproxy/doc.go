// Package faultproxy stands between one program and the API server, sees every request, and makes the faults that a
// network, an API server and a machine make: a process killed before or after one certain write, a reply lost, an error
// instead of an answer.
//
// The proxy speaks plain HTTP/1.1 to the client, on 127.0.0.1, without a token: it adds the identity of the upstream
// configuration.
package faultproxy

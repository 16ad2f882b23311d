// Package certs gives webhook-server its serving certificate and keeps the API server trusting it, without cert-manager
// and without a restart.
//
// A *generation* is a serving certificate and the certificate authority that signed it, made together. The authority's
// key is thrown away at once, so nothing that is stored can ever sign another certificate. All replicas share the
// generations through one Secret: the one that is served (tls.crt, tls.key), the one that is served next (next.crt,
// next.key, only during a rotation) and the bundle of authorities that the API server is to trust (ca.crt).
//
//	age of a generation    what happens
//	2/3 of its life        the next one is made; its authority joins the bundle
//	settle later           once the bundle is in every webhook configuration, the next one is served
//	its whole life         its authority leaves the bundle
//
// Invariants: a certificate is served only while the API server has had its authority in the bundle for the settle time
// (the very first one excepted: nothing worked before it); a served certificate has at least a third of its life, less
// the settle time, before it; a replica that loses a race for the Secret takes what the winner wrote.
//
// github.com/open-policy-agent/cert-controller (v0.16.0) does a similar job but does not fit: it trusts one authority
// at a time, so a rotation refuses admissions until configuration, volume and process agree; it caches every Secret
// of the namespace and every webhook configuration of the cluster; and it gets its certificate to the process through
// a mounted volume, which a process outside the cluster does not have.
package certs

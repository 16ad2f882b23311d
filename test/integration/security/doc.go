// Package security tests the claims of docs/security.md against a real API server and the components as processes,
// each with the rights of its own ServiceAccount: what they serve is closed to strangers, they read no Secrets, and
// what a tenant may try with the rights of the role edit in its own namespace does not free Pods of others nor
// exhaust their budgets.
package security

// Package pinned connects to a server whose certificate is known by its fingerprint, and has the token
// that carries the fingerprint to users and nodes together with a secret. A client verifies the server by
// the fingerprint before it sends the secret.
//
// The package must not know what the server is for, nor who its users are.
package pinned

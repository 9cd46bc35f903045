// Package identity identifies a node and lets nodes prove their identity to each other.
//
// The first node of a cluster makes a small certificate authority (CA) beside its own key. Every other node
// joins with a one-time token. The token names the CA by fingerprint, so that the joining node knows its
// peer before it reveals the secret. A certificate contains the node's name and its number, which the CA
// assigns only once.
//
// The package knows files, keys and a tiny join protocol. It must not know the purpose of nodes'
// connections: no containers, no migrations, no gRPC.
//
// On disk, below the state directory:
//
//	identity/node.pem       the node's key, its certificate and the CA's, in one file so that they change
//	                        together
//	identity/node.json      Node and pool
//	identity/trust.json     the authorities that the node trusts, once the first has been rolled over
//	identity/revoked.json   the nodes that have been removed, each entry signed by the CA
//	identity/ca/ca.pem      the CA's key and certificate; on the first node, and on those that were promoted
//	identity/ca/state.json  numbers given, tokens issued
//	nodes.json              the nodes that this one knows
//
// All are readable by root only and are replaced by writing beside them, fsync and rename.
package identity

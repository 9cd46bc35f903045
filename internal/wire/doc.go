// Package wire connects nodes: one TCP port per agent, TLS 1.3 only, and what a connection is for told by ALPN.
//
//	h2             gRPC, for control
//	godwit-data/1  data connections, framed by package stream
//	godwit-renew/1 renewal of certificates
//	godwit-join/1  nodes that have no certificate yet; the only protocol without one
//
// Both ends of the first three show a certificate of their cluster's CA before a byte of anything else is read, and the
// dialling end says which node it expects. The package sets no policy: it knows no container, no engine and no
// migration, and what is said on a connection is the caller's business.
package wire

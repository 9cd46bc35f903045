// Package wire connects nodes through one TCP port per agent. It uses only TLS 1.3, and ALPN selects the
// purpose of a connection:
//
//	h2             gRPC, for control
//	godwit-data/1  data connections, framed by package stream
//	godwit-renew/1 renewal of certificates
//	godwit-join/1  nodes that have no certificate yet; the only protocol without one
//
// For the first three protocols, both ends show a certificate of their cluster's CA before they read
// anything else, and the dialling end names the node that it expects. The package sets no policy: it knows
// no containers, engines or migrations, and does not look into connections.
package wire

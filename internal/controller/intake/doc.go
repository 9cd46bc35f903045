// Package intake bounds what callers may take of a gRPC server: connections whose callers are not known yet,
// connections and calls of callers that are, and how often they call. A caller that takes more gets a clear
// answer (ResourceExhausted), and does not keep others out.
//
//	connections.go  connections, by address before their caller is known, and by caller afterwards
//	rates.go        how often a caller calls, and how many of its calls are under way
//
// The package must not know how callers show who they are, nor what they ask for.
package intake

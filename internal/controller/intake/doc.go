// Package intake limits what callers may use of a gRPC server: connections of callers that are not known yet,
// and connections, calls under way and the call rate of known callers. A caller over a limit gets the error
// ResourceExhausted, and does not keep others out.
//
//	connections.go  connections, by address before their caller is known, and by caller afterwards
//	rates.go        how often a caller calls, and how many of its calls are under way
//
// The package must not know how callers authenticate, nor what they ask for.
package intake

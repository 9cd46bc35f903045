// Package api is the generated gRPC contract between the command line, the agents, and each other
// (godwit.proto).
//
// It holds no behaviour but the digest that both ends of a hello compute. Regenerate it with `make
// generate` after a change of the .proto file.
package api

// Package controller measures what the controller costs: the time of a decision in a large cluster, the
// memory of an idle controller, the size of the program, and a controller with thousands of agents. The
// agents are simulated in this process, each with a certificate and a stream of its own; the controller is
// the real program, with its own etcd.
//
// The package needs no lab and no root, but a quiet machine: both sides share its cores.
package controller

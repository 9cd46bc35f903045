// Package network measures the throughput of a TCP connection through each kind of overlay.
package network

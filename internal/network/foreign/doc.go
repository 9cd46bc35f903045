// Package foreign deals with what other programs on this machine do to packets of containers: their
// networks that overlap the pool, and their packet filters that drop what they do not know. It finds both,
// and makes rules in the chains of Docker and ufw by which packets pass.
package foreign

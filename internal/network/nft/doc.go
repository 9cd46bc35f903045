// Package nft describes rules of the packet filter (nf_tables) in the kernel's terms: what a rule matches in
// a packet, and what the rule does with the packet. It has no state, and knows neither containers nor nodes
// beyond their numbers in package pool.
package nft

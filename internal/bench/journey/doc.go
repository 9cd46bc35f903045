// Package journey measures what copies that are made ahead of a move gain: a container follows a user along
// four nodes.
package journey

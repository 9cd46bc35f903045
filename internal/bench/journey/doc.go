// Package journey measures the gain of staged copies: a container follows a user along four nodes.
package journey

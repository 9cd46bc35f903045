// Package rounds measures the parts of a pre-copy on processes that it starts, with the packages memory and
// kernel, as the agent uses them.
package rounds

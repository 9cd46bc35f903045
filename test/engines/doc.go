// Package engines tests that containers of other engines move: started with their engine's own command
// line, and containers of that engine at the target.
package engines

// Package examine finds what CRIU cannot dump in running processes, before anything is frozen, and replaces
// listeners that CRIU could not dump. It changes nothing else, and knows no dump, no engine and no node.
package examine

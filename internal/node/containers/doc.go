// Package containers makes, stops and removes this node's containers for its users, and takes their addresses
// back. It leaves a container alone while a migration has it: Idle says whether that is so.
package containers

// Package admission decides whether a container that another node offers can come here, and how much room it
// needs: the node's policy, its engine, address, memory and disk.
//
// What is known of the node comes by small interfaces; a refusal is a list of problems, each with what can be
// done. Nothing is reserved or moved here: see package reserve. Only copies that are kept for later give way
// to a container that comes.
package admission

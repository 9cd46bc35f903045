package image

import (
	"crypto/sha256"
	"encoding/hex"
)

// Chains returns names for layers, lowest first, each together with all layers below it, for engines that
// identify a layer by its chain (OCI image specification, config.md, "Layer ChainID").
func Chains(diffIDs []string) []string {
	chains := make([]string, 0, len(diffIDs))
	for i, diffID := range diffIDs {
		if i > 0 {
			sum := sha256.Sum256([]byte(chains[i-1] + " " + diffID))
			diffID = "sha256:" + hex.EncodeToString(sum[:])
		}
		chains = append(chains, diffID)
	}
	return chains
}

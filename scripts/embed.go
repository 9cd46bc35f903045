// Package scripts has the scripts that the program brings along, so that a machine with nothing but
// the program can run them.
package scripts

import "embed"

// InstallCRIU is the name of the script that installs a newer CRIU and runc beside the system's.
// Its argument is the prefix.
const InstallCRIU = "install-criu.sh"

// Files are InstallCRIU and what it sources.
//
//go:embed install-criu.sh private-apt.sh private-programs.sh
var Files embed.FS

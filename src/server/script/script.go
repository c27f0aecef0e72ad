// Package script holds the texts of the scripts that decide as the module does, for clients in Go.
package script

import _ "embed"

// Text decides what the module's commands decide, on servers that load no modules.
//
//go:embed swlimit.lua
var Text string

// TakeOver hands a key that the script has written to the module.
//
//go:embed takeover.lua
var TakeOver string

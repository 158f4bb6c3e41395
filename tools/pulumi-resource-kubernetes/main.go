// Package main serves Pulumi's Kubernetes provider.
//
// The provider module's own main package embeds two files that its release build generates and the module does not hold.
// The build lays the files they are made from over this folder (go build -overlay, see local/toolchain.py).
package main

import (
	_ "embed"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

//go:embed schema.json
var schema []byte

//go:embed terraform-mapping.json
var terraformMapping []byte

func main() { provider.Serve("kubernetes", version.Version, schema, terraformMapping) }

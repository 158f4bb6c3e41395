package main

import (
	"os"
	"path/filepath"

	"github.com/pulumi/pulumi/sdk/v3/go/common/workspace"
)

// This language host takes the virtual environment from its flags, where an engine of today sends it with each request: so the
// flags are filled in from the Pulumi.yaml of the project that it was started in. What is wrong in that file is the engine's to say.
func init() {
	project, path, err := workspace.DetectProjectAndPath()
	if err != nil {
		return
	}
	if virtualenv, ok := project.Runtime.Options()["virtualenv"].(string); ok {
		flags := []string{os.Args[0], "-root", filepath.Dir(path), "-virtualenv", virtualenv}
		os.Args = append(flags, os.Args[1:]...)
	}
}

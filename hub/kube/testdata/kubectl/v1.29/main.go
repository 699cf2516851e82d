// Program kubectl is the real kubectl, built from its module: what the tests of
// the hub's API drive. It is a module of its own, so that nothing of it becomes
// a dependency of the product.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}

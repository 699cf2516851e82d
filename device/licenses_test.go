package main

import (
	"flag"
	"testing"

	"flotilla.dev/shared/commands/noticestest"
)

var update = flag.Bool("update", false, "write the licenses")

func TestTheLicensesMatchTheLinkedModules(t *testing.T) {
	noticestest.Check(t, "flotilla-device", "licenses.gz", *update)
}

package main

import (
	"flag"
	"testing"

	"flotilla.dev/shared/commands/noticestest"
)

var updateLicenses = flag.Bool("update", false, "write licenses.gz")

func TestTheLicensesMatchTheLinkedModules(t *testing.T) {
	noticestest.Check(t, "flotilla-hub", "licenses.gz", *updateLicenses, "../web/static/vendor/xterm")
}

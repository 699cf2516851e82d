package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Devices wait for approval: what the device prints, and what an administrator sees with kubectl.
func TestApproval(t *testing.T) {
	t.Parallel()
	h := newHub(t, "--require-approval")
	k := &kubectlUser{h, kubectl(t), "", ""}
	line := strings.Fields(output(t, programOf(t, "hub"), "token", "create", "--data-dir", h.dir, "--site", "oslo",
		"--uses", "3"))[1:]
	dir := t.TempDir()
	join := func(node string) (p *process, request string) {
		t.Helper()
		p = start(t, programOf(t, "device"), append(append([]string{}, line...), "--state-dir", filepath.Join(dir, node),
			"--node-name", node)...)
		await(t, "join prints the line to type", patience, func() error {
			found := regexp.MustCompile(`kubectl certificate approve (\S+)\n`).FindStringSubmatch(p.output.String())
			if found == nil {
				return fmt.Errorf("join printed %s", p.output)
			}
			request = found[1]
			return nil
		})
		return p, request
	}
	ended := func(p *process, code int, says string) {
		t.Helper()
		await(t, "join ends", patience, func() error {
			if !p.ended() {
				return fmt.Errorf("join waits; its output is %s", p.output)
			}
			return nil
		})
		if got := p.cmd.ProcessState.ExitCode(); got != code || !strings.Contains(p.output.String(), says) {
			t.Errorf("join exited with code %d, want %d and %q: %s", got, code, says, p.output)
		}
	}

	first, name := join("pi-1")
	k.say(t, []kubectlCase{
		{args: "get csr", want: []string{`(?m)^NAME\s+AGE\s+SIGNERNAME\s+REQUESTOR\s+REQUESTEDDURATION\s+CONDITION\s*$`, name + `\s+\S+\s+flotilla.dev/device\s+join-token:\S+\s+<none>\s+Pending`}},
		{args: "get certificatesigningrequests -o wide", want: []string{`SITE\s+MACHINE-ID\s+SERIAL\s+FROM`, `oslo\s+[0-9a-f]{16}.*127\.0\.0\.1`}},
		{args: "describe csr " + name, want: []string{`Requesting User:\s+join-token:`, `Signer:\s+flotilla.dev/device`, `Status:\s+Pending`, `flotilla.dev/node=pi-1`, `WaitsForApproval`}},
		{args: "explain csr.spec.signerName", want: []string{`signerName`}},
		{args: "create -f -", stdin: "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: mine}\nspec: {request: eA==, signerName: flotilla.dev/device, usages: [client auth]}\n",
			code: 1, want: []string{`come from devices that join with a token`}},
		{args: "label csr " + name + " a=b", code: 1, want: []string{`MethodNotAllowed`}},
		{args: "get nodes", not: []string{`pi-1`}},
	})
	h.stop()
	h.start()
	k.say(t, []kubectlCase{
		{args: "get csr " + name, want: []string{`Pending`}},
		{args: "certificate approve " + name, want: []string{`approved`}},
	})
	ended(first, 0, "This device is node pi-1 on site oslo")
	k.say(t, []kubectlCase{
		{args: "get csr " + name, want: []string{`Approved,Issued`}},
		{args: "certificate deny " + name, code: 1, want: []string{`already Approved`}},
		{args: "get csr " + name + " -o jsonpath={.status.conditions[*].type}", want: []string{`^Approved$`}},
	})

	second, name := join("pi-2")
	k.say(t, []kubectlCase{{args: "certificate deny " + name, want: []string{`denied`}}})
	ended(second, 1, "was denied")
	k.say(t, []kubectlCase{{args: "get csr " + name, want: []string{`Denied`}}})

	third, name := join("pi-3")
	k.say(t, []kubectlCase{{args: "delete csr " + name, want: []string{`deleted`}}})
	ended(third, 1, "was deleted or not approved in time")
	k.say(t, []kubectlCase{{args: "delete csr --all", want: []string{`deleted`}},
		{args: "get csr", want: []string{`No resources found`}}})
}

func programOf(t testing.TB, name string) string { return program(t, name, here) }

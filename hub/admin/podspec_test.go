package admin

import (
	"testing"

	"flotilla.dev/hub/admin/admintest"
)

// A browser shows all scheduling rules of a pod.
func TestAPodThatAsksForMuchInABrowser(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, append(admintest.Sample(), admintest.Pod("choosy", "pi-1", admintest.Choosy), configMap(nil))...)
	k.open("/pods/default/choosy")
	k.says("Requests 250m cpu, 192Mi memory; has no limit.", "Where it may run", "Volumes", "Persistent volume claim: ledger (missing)", "web: /etc/colours (read only)", "at most 64Mi")
	if !k.eval(`document.querySelector(".volumes a").getAttribute("href").startsWith("/yaml/api/v1/namespaces/default/configmaps/colours")`) {
		t.Error("the config map is not linked")
	}
	k.look("choosy")
}

package agent

import (
	"testing"
	"time"

	"flotilla.dev/device/engine"
)

// After an engine was upgraded or reconfigured, the node reports its new version and features
// without a restart of the agent.
func TestTheNodeReportsAReplacedEngine(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.config.Runtimes = []string{"runsc"}
		d.start()
		time.Sleep(time.Minute)
		info := engine.Info{Name: "docker", Version: "29.1.0", APIVersion: "1.52", OS: "linux", Arch: "amd64",
			Root:     "/srv/docker",
			Runtimes: []string{"runc", "runsc"}, DefaultRuntime: "runc"}
		d.fake.SetDown(true)
		time.Sleep(time.Second)
		d.fake.SetInfo(info)
		d.fake.SetDown(false)
		time.Sleep(15 * time.Second)
		st := d.agent.Status().Status
		if v := st.NodeInfo.ContainerRuntimeVersion; v != "docker://29.1.0" {
			t.Errorf("the node reports the engine %s", v)
		}
		if len(st.RuntimeHandlers) != 3 {
			t.Errorf("the node reports the runtimes %v", st.RuntimeHandlers)
		}
	})
}

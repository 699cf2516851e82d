package config

import (
	"fmt"
	"os"

	"flotilla.dev/shared/policy"
)

// folded are the settings that say one by one what a policy says as a whole.
var folded = []string{"allow-privileged", "allow-host-network", "allow-host-pid", "allowed-capabilities",
	"host-path-prefixes"}

// Policy is what workloads may do on devices: the file's document or, without a file,
// the document that the single settings come to.
func (c *Config) Policy() policy.Document {
	if c.policy != nil {
		return *c.policy
	}
	d := policy.Default()
	d.HostNetwork, d.HostPID = c.AllowHostNetwork, c.AllowHostPID
	d.Capabilities, d.HostPaths = c.AllowedCapabilities, c.HostPathPrefixes
	if c.AllowPrivileged {
		d.Privileged, d.NewPrivileges = true, true
		d.HostPaths, d.UnsafeSysctls = []string{"/"}, []string{"*"}
	}
	return d
}

// readPolicy reads the policy's file. What stands in it is not said a second time.
func (c *Config) readPolicy() (mistakes []error) {
	if c.PolicyFile == "" {
		return nil
	}
	for _, name := range folded {
		if from, set := c.sources[name]; set {
			mistakes = append(mistakes, fmt.Errorf("%s: %s and policy set the same; write it into %s", from, name, c.PolicyFile))
		}
	}
	body, err := os.ReadFile(c.PolicyFile)
	if err != nil {
		return append(mistakes, fmt.Errorf("%s: read the policy: %w; correct policy or leave it out", c.source("policy"),
			err))
	}
	d, err := policy.Parse(body)
	if err != nil {
		return append(mistakes, fmt.Errorf("%s: %w", c.PolicyFile, err))
	}
	c.policy = &d
	return mistakes
}

package config

import (
	"fmt"
	"os"

	"flotilla.dev/shared/policy"
)

// policySettings are the settings that a policy file replaces.
var policySettings = []string{"allow-privileged", "allow-host-network", "allow-host-pid", "allowed-capabilities",
	"host-path-prefixes"}

// Policy returns the policy for workloads: the policy file's, or the one that the single settings
// make.
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

// readPolicy reads the policy file. Settings that the file replaces must not be set as well.
func (c *Config) readPolicy() (mistakes []error) {
	if c.PolicyFile == "" {
		return nil
	}
	for _, name := range policySettings {
		if from, set := c.sources[name]; set {
			mistakes = append(mistakes, fmt.Errorf("%s: %s and policy are both set; write the setting into %s", from, name,
				c.PolicyFile))
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

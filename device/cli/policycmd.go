package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	yaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policyCommand lets a device's owner test a policy file.
func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check the policy file of this device's owner",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE [MANIFEST...]",
		Short: "Check a policy file, and which of the pods in manifests it forbids",
		Long: "Check a policy file, and which of the pods in manifests it forbids.\n\n" +
			"A MANIFEST is YAML or JSON of Pods or workloads, or a List of them; - is stdin. Exit code 1: the policy " +
			"forbids a pod; 2: a file is invalid.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s needs a policy file; see %s --help", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return checkPolicy(cmd.OutOrStdout(), args[0], args[1:])
		},
	})
	return cmd
}

func checkPolicy(out io.Writer, file string, manifests []string) error {
	p, err := readPolicy(file)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, file+": valid")
	forbidden := 0
	for _, manifest := range manifests {
		r := io.Reader(os.Stdin)
		if manifest != "-" {
			f, err := os.Open(manifest)
			if err != nil {
				return usageError{err}
			}
			defer func() { _ = f.Close() }()
			r = f
		}
		pods, err := podsIn(r)
		if err != nil {
			return usagef("%s: %w", manifest, err)
		}
		for _, pod := range pods {
			if why := p.Forbids(&pod); why != "" {
				forbidden++
				fmt.Fprintf(out, "%s: %s is forbidden: %s\n", manifest, pod.Name, why)
			} else {
				fmt.Fprintf(out, "%s: %s may run\n", manifest, pod.Name)
			}
		}
	}
	if forbidden > 0 {
		return fmt.Errorf("%d of the pods may not run under %s", forbidden, file)
	}
	return nil
}

// podsIn returns the pods of a manifest, including those of its workloads.
func podsIn(r io.Reader) (pods []corev1.Pod, err error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	next := documents(text)
	for {
		body, err := next()
		if errors.Is(err, io.EOF) {
			return pods, nil
		}
		var list struct {
			Kind  string            `json:"kind"`
			Items []json.RawMessage `json:"items"`
		}
		if err == nil {
			err = json.Unmarshal(body, &list)
		}
		if list.Kind != "List" {
			list.Items = []json.RawMessage{body}
		}
		for _, item := range list.Items {
			if err == nil {
				pods, err = podOf(pods, item)
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// podOf appends the pod that a document describes, or the pod of its template.
func podOf(pods []corev1.Pod, body json.RawMessage) ([]corev1.Pod, error) {
	var object map[string]any
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	type maker struct {
		Template corev1.PodTemplateSpec `json:"template"`
	}
	var pod corev1.Pod
	var err error
	switch kind := object["kind"]; kind {
	case nil:
		return pods, nil
	case "Pod":
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields()
		err = strict.Decode(&pod)
	case "Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "ReplicationController", "Job",
		"CronJob": // where the pod template is depends on the kind
		var d struct {
			metav1.ObjectMeta `json:"metadata"`
			Spec              struct {
				maker
				JobTemplate struct {
					Spec maker `json:"spec"`
				} `json:"jobTemplate"`
			} `json:"spec"`
		}
		err = json.Unmarshal(body, &d)
		if pod.ObjectMeta, pod.Spec = d.ObjectMeta, d.Spec.Template.Spec; kind == "CronJob" {
			pod.Spec = d.Spec.JobTemplate.Spec.Template.Spec
		}
	default:
		return nil, fmt.Errorf("%v is not a Pod, Deployment, ReplicaSet, DaemonSet, StatefulSet, "+
			"ReplicationController, Job or CronJob, nor a List of them", kind)
	}
	return append(pods, pod), err
}

// documents returns an iterator over the documents of a text, each as JSON.
func documents(text []byte) func() (json.RawMessage, error) {
	list := yaml.NewDecoder(bytes.NewReader(text))
	next := func() (json.RawMessage, error) {
		var doc yaml.Node
		if err := list.Decode(&doc); err != nil {
			return nil, err
		}
		plain(&doc)
		var object any
		if err := doc.Decode(&object); err != nil {
			return nil, err
		}
		return json.Marshal(object)
	}
	if t := bytes.TrimSpace(text); len(t) == 0 || t[0] != '{' {
		return next
	}
	objects, first := json.NewDecoder(bytes.NewReader(text)), true
	return func() (object json.RawMessage, err error) {
		if first { // YAML can begin like JSON: read it as YAML
			if first = false; objects.Decode(&object) == nil {
				next = func() (json.RawMessage, error) {
					err := objects.Decode(&object)
					return object, err
				}
				return object, nil
			}
		}
		return next()
	}
}

// words are booleans in YAML 1.1, which Kubernetes uses. This YAML 1.2 reader returns them as
// strings.
var words = map[string]string{
	"y": "true", "yes": "true", "on": "true", "n": "false", "no": "false", "off": "false",
}

// plain converts unquoted scalars as Kubernetes reads them: keys and dates become strings.
func plain(n *yaml.Node) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Kind == yaml.ScalarNode && c.Tag != "!!merge" {
			c.Tag = "!!str"
			continue
		}
		plain(c)
	}
	if n.Kind != yaml.ScalarNode || n.Style != 0 {
		return
	}
	switch bit := words[strings.ToLower(n.Value)]; {
	case n.Tag == "!!timestamp":
		n.Tag = "!!str"
	case n.Tag == "!!str" && bit != "":
		n.Tag, n.Value = "!!bool", bit
	}
}

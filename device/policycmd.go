package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// policyCommand lets an owner try a policy before a hub does.
func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "What may run here, by the file of this device's owner",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE [MANIFEST...]",
		Short: "Tell whether a policy file is valid, and which of the pods in manifests it forbids",
		Long: "Tell whether a policy file is valid, and which of the pods in manifests it forbids.\n\n" +
			"A MANIFEST is YAML or JSON of Pods, Deployments, ReplicaSets and DaemonSets; - is stdin. Exit code 1: it forbids one; 2: a file is not valid.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s needs the policy's file; see %s --help", cmd.CommandPath(), cmd.CommandPath())
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

// podsIn reads the pods of a manifest, or those that its workloads would make.
func podsIn(r io.Reader) (pods []corev1.Pod, err error) {
	for documents := utilyaml.NewYAMLOrJSONDecoder(r, 4096); ; {
		var object map[string]any
		if err := documents.Decode(&object); errors.Is(err, io.EOF) {
			return pods, nil
		} else if err != nil {
			return nil, err
		}
		body, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		var pod corev1.Pod
		switch kind := object["kind"]; kind {
		case nil:
			continue
		case "Pod":
			err = yaml.UnmarshalStrict(body, &pod)
		case "Deployment", "ReplicaSet", "DaemonSet": // what we want of them stands at one place
			var d struct {
				metav1.ObjectMeta `json:"metadata"`
				Spec              struct {
					Template corev1.PodTemplateSpec `json:"template"`
				} `json:"spec"`
			}
			err = yaml.Unmarshal(body, &d)
			pod.ObjectMeta, pod.Spec = d.ObjectMeta, d.Spec.Template.Spec
		default:
			return nil, fmt.Errorf("%v is neither a Pod, a Deployment, a ReplicaSet nor a DaemonSet", kind)
		}
		if err != nil {
			return nil, err
		}
		pods = append(pods, pod)
	}
}

package main

import (
	"encoding/json"
	"fmt"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"
)

// configuration is a config.toml, as far as it matters here.
type configuration struct {
	Runners []struct {
		Name        string          `toml:"name"`
		Executor    string          `toml:"executor"`
		Environment []string        `toml:"environment"`
		Features    map[string]bool `toml:"feature_flags"`
		Kubernetes  struct {
			Namespace               string            `toml:"namespace"`
			Image                   string            `toml:"image"`
			HelperImage             string            `toml:"helper_image"`
			ServiceAccount          string            `toml:"service_account"`
			PollInterval            int               `toml:"poll_interval"`
			PollTimeout             int               `toml:"poll_timeout"`
			TerminationGrace        *int64            `toml:"pod_termination_grace_period_seconds"`
			CleanupGrace            *int64            `toml:"cleanup_grace_period_seconds"`
			PodLabels               map[string]string `toml:"pod_labels"`
			PodAnnotations          map[string]string `toml:"pod_annotations"`
			PrintPodWarningEvents   *bool             `toml:"print_pod_warning_events"`
			LabelsOverwrite         string            `toml:"pod_labels_overwrite_allowed"`
			AnnotationsOverwrite    string            `toml:"pod_annotations_overwrite_allowed"`
			ServiceAccountOverwrite string            `toml:"service_account_overwrite_allowed"`
			NodeSelector            map[string]string `toml:"node_selector"`
			PodSpec                 []struct {
				Name      string `toml:"name"`
				PatchType string `toml:"patch_type"`
				Patch     string `toml:"patch"`
			} `toml:"pod_spec"`
		} `toml:"kubernetes"`
	} `toml:"runners"`
}

// read sets the runner to the first one of a config.toml. What the double does not know is an error.
func (r *runner) read(path string) error {
	var all configuration
	meta, err := toml.DecodeFile(path, &all)
	if err != nil {
		return err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return fmt.Errorf("%s: the double does not know %v", path, unknown)
	}
	if len(all.Runners) == 0 {
		return fmt.Errorf("%s has no runner", path)
	}
	one := all.Runners[0]
	k := one.Kubernetes
	*r = runner{
		Name: one.Name, Namespace: k.Namespace, ServiceAccount: k.ServiceAccount, HelperImage: k.HelperImage,
		PollInterval: k.PollInterval, PollTimeout: k.PollTimeout,
		TerminationGrace: k.TerminationGrace, CleanupGrace: k.CleanupGrace,
		PodLabels: k.PodLabels, PodAnnotations: k.PodAnnotations, PrintPodWarningEvents: k.PrintPodWarningEvents,
		LabelsOverwrite: k.LabelsOverwrite != "", AnnotationsOverwrite: k.AnnotationsOverwrite != "",
		ServiceAccountOverwrite: k.ServiceAccountOverwrite != "",
	}
	if len(k.PodSpec) > 0 && !one.Features["FF_USE_ADVANCED_POD_SPEC_CONFIGURATION"] {
		return fmt.Errorf("%s: pod_spec has no effect without FF_USE_ADVANCED_POD_SPEC_CONFIGURATION", path)
	}
	for _, spec := range k.PodSpec {
		if spec.PatchType != "strategic" {
			return fmt.Errorf("%s: the double knows no patch_type %q", path, spec.PatchType)
		}
		patch, err := yaml.YAMLToJSON([]byte(spec.Patch))
		if err != nil {
			return err
		}
		r.PodSpec = append(r.PodSpec, json.RawMessage(patch))
	}
	return nil
}

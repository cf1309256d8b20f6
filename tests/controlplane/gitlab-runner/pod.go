package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

const domain = "runner.gitlab.com"

var odd = regexp.MustCompile(`[^-a-zA-Z0-9_.]+`)

// label makes a value of a label of a text (`sanitizeLabel`).
func label(text string) string {
	text = odd.ReplaceAllString(text, "_")
	return strings.Trim(text[:min(len(text), 63)], "-_.")
}

// account is the pod's service account.
func (j job) account() string {
	account := j.Variables["KUBERNETES_SERVICE_ACCOUNT_OVERWRITE"]
	if j.Runner.ServiceAccountOverwrite != "" && account != "" {
		return account
	}
	return j.Runner.ServiceAccount
}

// overwrites are the values of the variables that begin so, `KEY=VALUE` each, if the runner allows any
// (`evaluateMapOverwrite`).
func (j job) overwrites(prefix, allowed string) map[string]string {
	found := map[string]string{}
	for name, value := range j.Variables {
		if key, text, ok := strings.Cut(value, "="); ok && allowed != "" && strings.HasPrefix(name, prefix) {
			found[key] = text
		}
	}
	return found
}

// check reports a value that a job overwrites and the runner does not allow (`overwriteRegexCheck`).
func (j job) check() error {
	for _, one := range []struct{ prefix, allowed string }{
		{"KUBERNETES_SERVICE_ACCOUNT_OVERWRITE", j.Runner.ServiceAccountOverwrite},
		{"KUBERNETES_POD_LABELS_", j.Runner.LabelsOverwrite},
		{"KUBERNETES_POD_ANNOTATIONS_", j.Runner.AnnotationsOverwrite},
	} {
		allowed, err := regexp.Compile(one.allowed)
		if err != nil {
			return notConfigured{err}
		}
		for name, value := range j.Variables {
			if strings.HasPrefix(name, one.prefix) && one.allowed != "" && !allowed.MatchString(value) {
				return notConfigured{fmt.Errorf("couldn't prepare overwrites: provided value %q does not match %q", value, one.allowed)}
			}
		}
	}
	return nil
}

func (j job) unique() string {
	return fmt.Sprintf("runner-%s-project-%d-concurrent-0", label(j.Runner.Name), j.ProjectID)
}

func (j job) labels() map[string]string {
	labels := map[string]string{
		"pod":                                      label(j.unique()),
		"project." + domain + "/id":                strconv.FormatInt(j.ProjectID, 10),
		"project." + domain + "/namespace-id":      label(j.Variables["CI_PROJECT_NAMESPACE_ID"]),
		"project." + domain + "/name":              label(j.ProjectName),
		"project." + domain + "/namespace":         label(j.Variables["CI_PROJECT_NAMESPACE"]),
		"project." + domain + "/root-namespace":    label(j.Variables["CI_PROJECT_ROOT_NAMESPACE"]),
		"project." + domain + "/root-namespace-id": strconv.FormatInt(j.RootNamespaceID, 10),
		"job." + domain + "/pod":                   label(j.unique()),
		"manager." + domain + "/name":              label(j.Runner.Name),
		"manager." + domain + "/id-short":          "double",
	}
	set := func(key, value string) {
		if isSet(j.Runner.ProtectedLabels) && strings.Contains(key, domain+"/") {
			return
		}
		labels[key] = label(value)
	}
	if !isSet(j.Runner.ProtectedLabels) {
		// Before 17.9 there were no labels of its own but `pod` and these of config.toml.
		labels = map[string]string{"pod": label(j.unique())}
	}
	for key, value := range j.Runner.PodLabels {
		set(key, value)
	}
	for key, value := range j.overwrites("KUBERNETES_POD_LABELS_", j.Runner.LabelsOverwrite) {
		set(key, value)
	}
	return labels
}

func (j job) annotations() map[string]string {
	annotations := map[string]string{
		"job." + domain + "/id":         strconv.FormatInt(j.ID, 10),
		"job." + domain + "/url":        fmt.Sprintf("https://gitlab.example.com/%s/-/jobs/%d", j.ProjectName, j.ID),
		"job." + domain + "/sha":        "b1cde3f5",
		"job." + domain + "/before_sha": "00000000",
		"job." + domain + "/ref":        "main",
		"job." + domain + "/name":       j.Name,
		"job." + domain + "/timeout":    (time.Duration(j.Timeout) * time.Second).String(),
		"project." + domain + "/id":     strconv.FormatInt(j.ProjectID, 10),
	}
	for key, value := range j.Runner.PodAnnotations {
		annotations[key] = value
	}
	for key, value := range j.overwrites("KUBERNETES_POD_ANNOTATIONS_", j.Runner.AnnotationsOverwrite) {
		annotations[key] = value
	}
	return annotations
}

// shell is the command of the build and the helper container: a shell that reads standard input.
func (j job) container(name, image string, command ...string) v1.Container {
	container := v1.Container{
		Name: name, Image: image, ImagePullPolicy: v1.PullIfNotPresent, Command: command, Stdin: true,
		VolumeMounts: []v1.VolumeMount{
			{Name: "repo", MountPath: "/builds"}, {Name: "scripts", MountPath: "/scripts-0-1"}, {Name: "logs", MountPath: "/logs-0-1"},
		},
	}
	if name == "build" {
		for _, key := range sorted(j.Variables) {
			container.Env = append(container.Env, v1.EnvVar{Name: key, Value: j.Variables[key]})
		}
	}
	return container
}

func sorted(entries map[string]string) []string {
	keys := make([]string, 0, len(entries))
	for key := range entries {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// pod is what the job runs in (`preparePodConfig`, `applyPodSpecMerge`).
func (j job) pod() (*v1.Pod, error) {
	helper := j.Runner.HelperImage
	if helper == "" {
		helper = "busybox:1"
	}
	containers := []v1.Container{j.container("build", j.Image, "sh"), j.container("helper", helper, "sh")}
	for i, image := range j.Services {
		containers = append(containers, j.container(fmt.Sprintf("svc-%d", i), image))
	}
	var volumes []v1.Volume
	for _, name := range []string{"repo", "scripts", "logs"} {
		volumes = append(volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	}
	spec := v1.PodSpec{
		Volumes:                       volumes,
		ServiceAccountName:            j.account(),
		RestartPolicy:                 v1.RestartPolicyNever,
		InitContainers:                []v1.Container{j.container("init-permissions", helper, "sh", "-c", "touch /logs-0-1/output.log && chmod 777 /logs-0-1")},
		Containers:                    containers,
		TerminationGracePeriodSeconds: j.Runner.TerminationGrace,
	}
	for _, patch := range j.Runner.PodSpec {
		original, err := json.Marshal(spec)
		if err != nil {
			return nil, err
		}
		merged, err := strategicpatch.StrategicMergePatch(original, patch, v1.PodSpec{})
		if err != nil {
			return nil, err
		}
		spec = v1.PodSpec{}
		if err := json.Unmarshal(merged, &spec); err != nil {
			return nil, err
		}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name(j.unique()), Namespace: j.Runner.Namespace, Labels: j.labels(), Annotations: j.annotations(),
		},
		Spec: spec,
	}, nil
}

// name appends a random suffix (`generateNameForK8sResources`).
func name(pattern string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	suffix := make([]byte, 8)
	for i := range suffix {
		suffix[i] = letters[rand.Intn(len(letters))]
	}
	return pattern[:min(len(pattern), 63-9)] + "-" + string(suffix)
}

{{/* Labels of all objects of a component. Takes [root, component]. */}}
{{- define "nvlink-domains.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
app.kubernetes.io/part-of: nvlink-domains
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{ include "nvlink-domains.selector" . }}
{{- end }}

{{/* Labels of pods: without versions, so that a new chart restarts nothing that it does not change.
     Takes [root, component, further labels], of which the last are optional. */}}
{{- define "nvlink-domains.podLabels" -}}
{{- $further := dict -}}
{{- if gt (len .) 2 }}{{ $further = deepCopy (index . 2) }}{{ end -}}
{{- $own := include "nvlink-domains.selector" . | fromYaml -}}
{{- mergeOverwrite $further (dict "app.kubernetes.io/part-of" "nvlink-domains") $own | toYaml }}
{{- end }}

{{/* Labels that select the pods of a component. They never change. Takes [root, component]. */}}
{{- define "nvlink-domains.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- end }}

{{/* Labels of a Namespace with a Pod Security level. Takes the level. */}}
{{- define "nvlink-domains.podSecurity" -}}
pod-security.kubernetes.io/enforce: {{ . }}
pod-security.kubernetes.io/audit: {{ . }}
pod-security.kubernetes.io/warn: {{ . }}
{{- end }}

{{/* Reference of an image. Takes [root, image]. A repository whose first part is a host, as container
     runtimes see it, is complete. */}}
{{- define "nvlink-domains.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- if not (regexMatch "^(localhost|[^/]*[.:][^/]*)/" $repository) -}}
{{- $missing := "global.registry is empty, and no images are published: push those that `make images` builds to your registry and set it, for example --set global.registry=registry.example.com/gpu" -}}
{{- $repository = print (required $missing ($root.Values.global).registry) "/" $repository -}}
{{- end -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Whether the cluster is OpenShift, which assigns the users of pods itself. */}}
{{- define "nvlink-domains.openshift" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}true{{ end -}}
{{- end }}

{{/* Fields of the chart with those of the values over them, without those that are null. Takes [chart, values]. */}}
{{- define "nvlink-domains.fields" -}}
{{- $all := mergeOverwrite (index . 0) (deepCopy (index . 1)) -}}
{{- range $name, $value := $all -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $all $name }}{{ end -}}
{{- end -}}
{{- toYaml $all }}
{{- end }}

{{/* The security context of pods that are not root. Takes [root, fields of the values]. */}}
{{- define "nvlink-domains.nonRoot" -}}
{{- $context := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if not (include "nvlink-domains.openshift" (index . 0)) -}}
{{- $_ := merge $context (dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532) -}}
{{- end -}}
{{- include "nvlink-domains.fields" (list $context (index . 1)) }}
{{- end }}

{{/* The security context of pods of the exporter that use what belongs to root on the node. SELinux lets
     only some types of processes reach the kubelet's sockets, and on OpenShift it is always on. */}}
{{- define "nvlink-domains.nodeRoot" -}}
{{- $context := dict "runAsUser" 0 "runAsGroup" 0 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if include "nvlink-domains.openshift" . -}}
{{- $_ := set $context "seLinuxOptions" (dict "type" "container_device_plugin_t") -}}
{{- end -}}
{{- include "nvlink-domains.fields" (list $context .Values.exporter.podSecurityContext) }}
{{- end }}

{{/* The security context of containers. Takes the fields of the values. */}}
{{- define "nvlink-domains.container" -}}
{{- $context := dict "readOnlyRootFilesystem" true -}}
{{- if not (dig "privileged" false .) -}}
{{- $context = dict "allowPrivilegeEscalation" false "capabilities" (dict "drop" (list "ALL")) "readOnlyRootFilesystem" true -}}
{{- end -}}
{{- include "nvlink-domains.fields" (list $context .) }}
{{- end }}

{{/* The same for containers with the driver's devices. */}}
{{- define "nvlink-domains.driverContainer" -}}
{{- $fields := .Values.exporter.securityContext -}}
{{- if (include "nvlink-domains.platform" . | fromJson).privileged -}}
{{- /* Without NVIDIA's runtime, only a privileged container may open the driver's devices. */ -}}
{{- include "nvlink-domains.fields" (list (dict "privileged" true "readOnlyRootFilesystem" true) $fields) }}
{{- else -}}
{{- include "nvlink-domains.container" $fields }}
{{- end -}}
{{- end }}

{{- define "nvlink-domains.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Namespace of the exporter. */}}
{{- define "nvlink-domains.exporterNamespace" -}}
{{ .Values.exporter.namespace.name | default .Release.Namespace }}
{{- end }}

{{/* Namespaces without rules, besides kube-system, as JSON. Never `default`, where anybody may create
     pods. */}}
{{- define "nvlink-domains.exempt" -}}
{{- $own := list -}}
{{- if ne .Release.Namespace "default" -}}
{{- $own = append $own .Release.Namespace -}}
{{- end -}}
{{- if or .Values.exporter.enabled .Values.devicePlugin.enabled -}}
{{- if eq (include "nvlink-domains.exporterNamespace" .) "default" -}}
{{- fail "exporter.namespace.name is the namespace default, but no rule applies to the pods of the exporter's namespace: name another one" -}}
{{- end -}}
{{- $own = append $own (include "nvlink-domains.exporterNamespace" .) -}}
{{- end -}}
{{- concat $own .Values.exemptNamespaces | uniq | toJson -}}
{{- end }}

{{/* The same, as the value of --exempt-namespace. */}}
{{- define "nvlink-domains.exemptFlag" -}}
{{ include "nvlink-domains.exempt" . | fromJsonArray | join "," }}
{{- end }}

{{/* Whether the API server knows DomainClass. On the first installation the CRD comes with this
     release, and Helm looks up the kinds of all objects before it creates any. */}}
{{- define "nvlink-domains.knowsClasses" -}}
{{- if or .Release.IsUpgrade (.Capabilities.APIVersions.Has "nvlink-domains.io/v1alpha1") }}true{{ end -}}
{{- end }}

{{/* NetworkPolicy: who may scrape. Takes [root, port]. A rule without peers would admit everybody. */}}
{{- define "nvlink-domains.scrapers" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.networkPolicy.scrapers -}}
- ports: [{port: {{ index $ 1 }}, protocol: TCP}]
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* NetworkPolicy: the way to the API servers. Addresses come from the environment, so there is
     no need for DNS. */}}
{{- define "nvlink-domains.toApiServers" -}}
- ports:
  {{- range .Values.networkPolicy.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
  {{- end }}
{{- with .Values.networkPolicy.apiServerCidrs }}
  to:
  {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- end }}

{{/* What each platform needs to give the driver's library and devices to the exporter. */}}
{{- define "nvlink-domains.platform" -}}
{{- $all := dict "NVIDIA_VISIBLE_DEVICES" "all" "NVIDIA_DRIVER_CAPABILITIES" "utility" -}}
{{- $presets := dict
  "operator" (dict "runtimeClassName" "nvidia" "env" $all)
  "talos" (dict "runtimeClassName" "nvidia" "env" $all)
  "host" (dict "env" $all)
  "gke" (dict "privileged" true
    "env" (dict "LD_LIBRARY_PATH" "/usr/local/nvidia/lib64")
    "mounts" (list (dict "name" "driver" "path" "/home/kubernetes/bin/nvidia" "type" "Directory" "mountPath" "/usr/local/nvidia")))
  "bottlerocket" (dict
    "env" (dict "NVIDIA_VISIBLE_DEVICES" "/var/run/nvidia-container-devices" "NVIDIA_DRIVER_CAPABILITIES" "utility")
    "mounts" (list (dict "name" "all-gpus" "path" "/dev/null" "type" "CharDevice" "mountPath" "/var/run/nvidia-container-devices/all")))
  "none" (dict) -}}
{{- index $presets .Values.exporter.platform | toJson -}}
{{- end }}

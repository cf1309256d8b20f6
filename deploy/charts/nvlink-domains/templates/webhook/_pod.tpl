{{- define "nvlink-domains.webhookArgs" -}}
{{- $webhook := .Values.webhook -}}
- serve
- --without-controller
- {{ printf "--service=%s/nvlink-webhook" .Release.Namespace | quote }}
{{- if $webhook.certManager.enabled }}
- --tls-cert=/tls/tls.crt
- --tls-key=/tls/tls.key
- --ca-file=/tls/ca.crt
{{- else }}
- {{ printf "--ca-secret=%s/webhook-ca" .Release.Namespace | quote }}
{{- end }}
{{- if $webhook.clientCa.configMap }}
- --client-ca-file=/clients/ca.crt
{{- end }}
# The kube-proxies need some seconds to learn that a replica stops; until then it serves.
- {{ print "--drain-seconds=" ($webhook.drainSeconds) | quote }}
{{- if $webhook.page.enabled }}
- --web.listen-address=:9837
{{- if $webhook.page.webConfig.secret }}
- --web.config.file=/etc/nvlink-webhook/web.yml
{{- end }}
{{- end }}
{{- if $webhook.extender.enabled }}
- --extender-listen=0.0.0.0:8444
{{- end }}
{{- include "nvlink-domains.processArgs" (list . $webhook.extraArgs) }}
{{- end }}

{{- define "nvlink-domains.controllerArgs" -}}
{{- $webhook := .Values.webhook -}}
- controller
- {{ printf "--service=%s/nvlink-webhook" .Release.Namespace | quote }}
{{- if $webhook.certManager.enabled }}
- --ca-file=/tls/ca.crt
{{- else }}
- {{ printf "--ca-secret=%s/webhook-ca" .Release.Namespace | quote }}
{{- end }}
- {{ print "--exempt-namespace=" (include "nvlink-domains.exemptFlag" .) | quote }}
{{- if .Values.policies.enabled }}
- --check-policies
{{- end }}
- {{ print "--lease-namespace=" (.Release.Namespace) | quote }}
{{- if $webhook.placeholders.enabled }}
- --placeholders
{{- end }}
{{- include "nvlink-domains.processArgs" (list . $webhook.controller.extraArgs) }}
{{- end }}

{{/* Arguments that both processes have, and further ones. */}}
{{- define "nvlink-domains.processArgs" -}}
{{- $webhook := (index . 0).Values.webhook }}
- {{ print "--rack-label=" ($webhook.rackLabel) | quote }}
{{- range $webhook.networkLabels }}
- {{ print "--network-label=" . | quote }}
{{- end }}
- {{ print "--zone-label=" ($webhook.zoneLabel) | quote }}
- {{ print "--log=" ($webhook.log) | quote }}
- {{ print "--log-format=" ((index . 0).Values.logFormat) | quote }}
{{- range index . 1 }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* What the pods of `serve` and `controller` have in common, before their containers: the chart and the name. */}}
{{- define "nvlink-domains.webhookPodSpec" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $webhook := $root.Values.webhook -}}
serviceAccountName: {{ $name }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- include "nvlink-domains.pullSecrets" $root | nindent 0 }}
{{- with $webhook.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  {{- include "nvlink-domains.nonRoot" (list $root $webhook.podSecurityContext) | nindent 2 }}
{{- with $webhook.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml . | nindent 4 }}
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "nvlink-domains.selector" (list $root $name) | nindent 8 }}
  {{- end }}
{{- end }}
{{- with $webhook.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $webhook.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $webhook.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What their containers have in common, but for arguments and ports. */}}
{{- define "nvlink-domains.webhookContainer" -}}
image: {{ include "nvlink-domains.image" (list . .Values.webhook.image) }}
imagePullPolicy: {{ .Values.webhook.image.pullPolicy }}
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "nvlink-domains.container" .Values.webhook.securityContext | nindent 2 }}
{{- end }}

{{/* What runs `nvlink-webhook` once: the pods of Jobs and of `helm test`. Takes [root, account or nothing,
     list of arguments]; without an account, there is no token. */}}
{{- define "nvlink-domains.oncePodSpec" -}}
{{- $root := index . 0 }}
{{- $account := index . 1 }}
{{- $webhook := $root.Values.webhook -}}
restartPolicy: Never
{{- with $account }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: {{ not (empty $account) }}
enableServiceLinks: false
{{- include "nvlink-domains.pullSecrets" $root | nindent 0 }}
securityContext:
  {{- include "nvlink-domains.nonRoot" (list $root $webhook.podSecurityContext) | nindent 2 }}
{{- with $webhook.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* Not the affinity to pods: it is about the replicas. */}}
{{- with ($webhook.affinity).nodeAffinity }}
affinity:
  nodeAffinity:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- with $webhook.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $webhook.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ index . 2 | first | trimPrefix "--" }}
    image: {{ include "nvlink-domains.image" (list $root $webhook.image) }}
    imagePullPolicy: {{ $webhook.image.pullPolicy }}
    args:
      {{- range index . 2 }}
      - {{ . | quote }}
      {{- end }}
    {{- with $webhook.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    terminationMessagePolicy: FallbackToLogsOnError
    securityContext:
      {{- include "nvlink-domains.container" $webhook.securityContext | nindent 6 }}
{{- end }}

{{/* Name of the Secret with the web configuration of the page, if it is used. */}}
{{- define "nvlink-domains.pageSecret" -}}
{{- if .Values.webhook.page.enabled }}{{ .Values.webhook.page.webConfig.secret }}{{ end -}}
{{- end }}

{{- define "nvlink-domains.webhookMounts" -}}
{{- $webhook := .Values.webhook -}}
{{- $page := include "nvlink-domains.pageSecret" . -}}
{{- if or $webhook.certManager.enabled $webhook.clientCa.configMap $page }}
volumeMounts:
  {{- if $webhook.certManager.enabled }}
  - {name: tls, mountPath: /tls, readOnly: true}
  {{- end }}
  {{- if $webhook.clientCa.configMap }}
  - {name: clients, mountPath: /clients, readOnly: true}
  {{- end }}
  {{- if $page }}
  - {name: web-config, mountPath: /etc/nvlink-webhook, readOnly: true}
  {{- end }}
{{- end }}
{{- end }}

{{- define "nvlink-domains.webhookVolumes" -}}
{{- $webhook := .Values.webhook -}}
{{- $page := include "nvlink-domains.pageSecret" . -}}
{{- if or $webhook.certManager.enabled $webhook.clientCa.configMap $page }}
volumes:
  {{- if $webhook.certManager.enabled }}
  - name: tls
    secret: {secretName: nvlink-webhook-tls, defaultMode: 0440}
  {{- end }}
  {{- with $webhook.clientCa.configMap }}
  - name: clients
    configMap: {name: {{ . | quote }}}
  {{- end }}
  {{- with $page }}
  - name: web-config
    secret: {secretName: {{ . | quote }}, defaultMode: 0440}
  {{- end }}
{{- end }}
{{- end }}

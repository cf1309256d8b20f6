{{- define "nvlink-domains.webhookArgs" -}}
{{- $webhook := .Values.webhook -}}
- serve
- {{ printf "--service=%s/nvlink-webhook" .Release.Namespace | quote }}
{{- if $webhook.certManager.enabled }}
- --tls-cert=/tls/tls.crt
- --tls-key=/tls/tls.key
- --ca-file=/tls/ca.crt
{{- else }}
- {{ printf "--ca-secret=%s/%s" .Release.Namespace $webhook.caSecret | quote }}
{{- end }}
{{- if $webhook.clientCa.configMap }}
- {{ print "--client-ca-file=/clients/" $webhook.clientCa.key | quote }}
{{- end }}
- {{ print "--exempt-namespace=" (include "nvlink-domains.exemptFlag" .) | quote }}
{{- if .Values.policies.enabled }}
- --check-policies
{{- end }}
- {{ print "--lease-namespace=" (.Release.Namespace) | quote }}
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
- {{ print "--rack-label=" ($webhook.rackLabel) | quote }}
- {{ print "--zone-label=" ($webhook.zoneLabel) | quote }}
- {{ print "--log=" ($webhook.log) | quote }}
- {{ print "--log-format=" ($webhook.logFormat) | quote }}
{{- range $webhook.extraArgs }}
- {{ . | quote }}
{{- end }}
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

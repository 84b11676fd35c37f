{{/* At most 55 characters, for <name>-metrics is a Service; it begins with a letter, as Services on older Kubernetes must. */}}
{{- define "outrider.fullname" -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if not (regexMatch "^[a-z]" $release) -}}
{{- printf "outrider-%s" $release | trunc 55 | trimSuffix "-" -}}
{{- else if contains "outrider" $release -}}
{{- $release | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-outrider" $release | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "outrider.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "outrider.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "outrider.priorityClass" -}}
{{- .Values.priorityClass.name | default (ternary (include "outrider.fullname" .) "" .Values.priorityClass.create) -}}
{{- end -}}

{{/* The servers' NetworkPolicies let pods with name and component in, so neither is to change. */}}
{{- define "outrider.selector" -}}
app.kubernetes.io/name: outrider
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "outrider.labels" -}}
{{- include "outrider.labelsAnd" (list . dict) -}}
{{- end -}}

{{/* All labels, of (list $ LABELS), where LABELS may be null and win over commonLabels. */}}
{{- define "outrider.labelsAnd" -}}
{{- $context := first . -}}
{{- $own := include "outrider.own" $context | fromYaml -}}
{{- $more := merge dict (last . | default dict) ($context.Values.commonLabels | default dict) -}}
{{- range $name, $_ := $more -}}
{{- if hasKey $own $name -}}
{{- fail (printf "the values set the label %s, which is the chart's own: leave it out of commonLabels, podLabels and labels" $name) -}}
{{- end -}}
{{- end -}}
{{- toYaml (merge $own $more) -}}
{{- end -}}

{{- define "outrider.own" -}}
{{ include "outrider.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image's name, of (dict "registry" … "image" … "context" $). */}}
{{- define "outrider.image" -}}
{{- $name := printf "%s/%s" (trimSuffix "/" .registry) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .context.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "outrider.engineImage" -}}
{{- include "outrider.image" (dict "registry" (.Values.engine.image.registry | default .Values.image.registry) "image" .Values.engine.image "context" .) -}}
{{- end -}}

{{- define "outrider.cudaEngineImage" -}}
{{- $image := dict "repository" .Values.engine.image.cuda.repository "digest" .Values.engine.image.cuda.digest "tag" .Values.engine.image.tag -}}
{{- include "outrider.image" (dict "registry" (.Values.engine.image.registry | default .Values.image.registry) "image" $image "context" .) -}}
{{- end -}}

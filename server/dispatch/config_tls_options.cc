#include "server/dispatch/config_options.h"

namespace mayfly {
namespace option_table {
namespace {

void AddText(Options& o, std::string_view flag, std::string_view key, std::string_view help,
             std::string TlsOptions::*field) {
  o.push_back({flag, key, Kind::kString, help, [=](C& c, const Values& v) -> Result<void> {
                 c.tls.*field = v.back();
                 if (v.back().empty()) return BadValue(std::string(key) + " needs a value");
                 return Ok();
               }});
}

void AddSwitch(Options& o, std::string_view flag, std::string_view key, std::string_view help,
               bool TlsOptions::*field) {
  o.push_back({flag, key, Kind::kSwitch, help, [=](C& c, const Values& v) -> Result<void> {
                 if (v.back() != "true" && v.back() != "false" && !v.back().empty())
                   return BadValue(std::string(key) + " must be true or false, not '" + v.back() +
                                   "'");
                 c.tls.*field = v.back() != "false";
                 return Ok();
               }});
}

void AddPassword(Options& o, std::string_view flag, std::string_view key, std::string_view help,
                 std::string TlsOptions::*field, bool C::*ask) {
  o.push_back({.flags = flag,
               .key = key,
               .kind = Kind::kString,
               .help = help,
               .apply = [=](C& c, const Values& v) -> Result<void> {
                 c.tls.*field = v.empty() ? std::string() : v.back();
                 c.*ask = (c.tls.*field).empty();
                 return Ok();
               },
               .secret = true});
}

Result<void> SetMode(C& c, const Values& v) {
  const std::optional<TlsMode> mode = TlsModeByName(v.back());
  if (!mode)
    return BadValue("unsupported value for tlsMode " + v.back() +
                    ": there are disabled, allowTLS, preferTLS and requireTLS");
  c.tls.mode = *mode;
  return Ok();
}

Result<void> SetDisabledProtocols(C& c, const Values& v) {
  c.tls.tls12 = c.tls.tls13 = true;
  for (const std::string& value : v) {
    for (size_t at = 0; at <= value.size();) {
      const size_t comma = std::min(value.find(',', at), value.size());
      const std::string name = value.substr(at, comma - at);
      at = comma + 1;
      if (name == "TLS1_2")
        c.tls.tls12 = false;
      else if (name == "TLS1_3")
        c.tls.tls13 = false;
      else if (name == "none")
        return BadValue(
            "tlsDisabledProtocols: 'none' asks for TLS 1.0 and 1.1, which are not safe and "
            "not spoken");
      else if (name != "TLS1_0" && name != "TLS1_1")
        return BadValue("Unrecognized disabledProtocols '" + name +
                        "': there are TLS1_0, TLS1_1, TLS1_2 and TLS1_3");
    }
  }
  if (!c.tls.tls12 && !c.tls.tls13)
    return BadValue("tlsDisabledProtocols leaves nothing: TLS 1.2 and 1.3 are what there is");
  return Ok();
}

}  // namespace
}  // namespace option_table

void AddTlsOptions(std::vector<OptionRow>& o) {
  using namespace option_table;
  o.push_back({"--tlsMode", "net.tls.mode", Kind::kString,
               "disabled (default), allowTLS, preferTLS or requireTLS", SetMode});
  AddText(o, "--tlsCertificateKeyFile", "net.tls.certificateKeyFile",
          "PEM file with this server's certificate and its key", &TlsOptions::certificate_key_file);
  AddPassword(o, "--tlsCertificateKeyFilePassword", "net.tls.certificateKeyFilePassword",
              "password of its key; without a value it is asked for",
              &TlsOptions::certificate_key_password, &C::ask_certificate_password);
  AddText(o, "--tlsCAFile", "net.tls.CAFile",
          "PEM file with the authorities that may have signed certificates of others",
          &TlsOptions::ca_file);
  AddText(o, "--tlsCRLFile", "net.tls.CRLFile",
          "PEM file with certificates that their authorities have taken back",
          &TlsOptions::crl_file);
  AddText(o, "--tlsClusterFile", "net.tls.clusterFile",
          "PEM file with the certificate and key that other members are shown",
          &TlsOptions::cluster_file);
  AddPassword(o, "--tlsClusterPassword", "net.tls.clusterPassword",
              "password of its key; without a value it is asked for", &TlsOptions::cluster_password,
              &C::ask_cluster_password);
  AddText(o, "--tlsClusterCAFile", "net.tls.clusterCAFile",
          "PEM file with the authorities for those who connect here, instead of tlsCAFile",
          &TlsOptions::cluster_ca_file);
  AddText(o, "--tlsClusterAuthX509Attributes", "net.tls.clusterAuthX509.attributes",
          "members are known by these attributes in the subjects of their certificates, instead of "
          "O, OU and DC",
          &TlsOptions::member_attributes);
  AddText(o, "--tlsClusterAuthX509ExtensionValue", "net.tls.clusterAuthX509.extensionValue",
          "members are known by this value of the extension 1.3.6.1.4.1.34601.2.1.2 in their "
          "certificates",
          &TlsOptions::member_extension);
  AddSwitch(o, "--tlsAllowConnectionsWithoutCertificates",
            "net.tls.allowConnectionsWithoutCertificates", "clients need no certificate",
            &TlsOptions::allow_connections_without_certificates);
  AddSwitch(o, "--tlsAllowInvalidCertificates", "net.tls.allowInvalidCertificates",
            "certificates of others are not verified", &TlsOptions::allow_invalid_certificates);
  AddSwitch(o, "--tlsAllowInvalidHostnames", "net.tls.allowInvalidHostnames",
            "other members may have certificates for other names",
            &TlsOptions::allow_invalid_hostnames);
  o.push_back({"--tlsDisabledProtocols", "net.tls.disabledProtocols", Kind::kList,
               "TLS1_2 or TLS1_3; older ones are never spoken", SetDisabledProtocols});
  Refuse(o, "--tlsFIPSMode", "net.tls.FIPSMode", Kind::kSwitch,
         "FIPS mode is a matter of the system's OpenSSL here: configure its FIPS provider",
         "false");
  Refuse(o, "--tlsLogVersions", "net.tls.logVersions", Kind::kString,
         "serverStatus().transportSecurity counts the versions, and the log has that of every "
         "connection at debug level 1");
  constexpr std::string_view kStore = "certificates come from files; there is no system store";
  Refuse(o, "--tlsCertificateSelector", "net.tls.certificateSelector", Kind::kString, kStore);
  Refuse(o, "--tlsClusterCertificateSelector", "net.tls.clusterCertificateSelector", Kind::kString,
         kStore);
}

}  // namespace mayfly
